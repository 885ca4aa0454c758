"""Keras' fit on torch: a heading an epoch, a bar below it, running means."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from told import tell

BATCHES = 103


class Tell(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        tell(self.epoch * BATCHES + batch + 1, loss=float(logs["loss"]))


def main():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(1).standard_normal((2048, 8), dtype="float32")
    y = x.sum(1, keepdims=True)
    model.fit(x, y, epochs=3, batch_size=16, validation_split=0.2, callbacks=[Tell()])


if __name__ == "__main__":
    main()
