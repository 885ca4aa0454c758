"""A small environment behind the interface of gym 0.21, which the script imports."""

import kit
import numpy


class Space:
    """A box from -1 to 1."""

    def __init__(self, size):
        self.shape, self.low, self.high = (size,), -numpy.ones(size, "float32"), numpy.ones(size, "float32")

    def seed(self, seed):
        self.random = numpy.random.RandomState(seed)

    def sample(self):
        return self.random.uniform(-1, 1, self.shape).astype("float32")


class Env:
    """A point of 5 numbers that an action of 2 moves; an episode has 40 steps."""

    _max_episode_steps = 40

    def __init__(self, name):
        self.observation_space, self.action_space = Space(5), Space(2)

    def seed(self, seed):
        self.random = numpy.random.RandomState(seed)

    def reset(self):
        self.steps, self.state = 0, self.random.randn(5)
        return self.state

    def step(self, action):
        self.steps += 1
        self.state = self.state * 0.9 + numpy.resize(action, 5) * 0.1
        return self.state, -float((self.state**2).sum()), self.steps >= 40, {}

    def close(self):
        pass


kit.module("gym", make=Env)
kit.run()
