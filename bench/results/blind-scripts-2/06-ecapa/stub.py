"""Short noise recordings in the folders that the script reads; a mean over the spectrum for torchaudio's mel bands; numpy's `float`."""

import os

import kit
import numpy
import soundfile
import torch

numpy.float = float


def record(path, seconds=1.3):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    soundfile.write(path, 0.1 * numpy.random.RandomState(len(path)).randn(int(16000 * seconds)), 16000)


for i in range(20):
    record(f"wav/id{i % 10}/{i}.wav")
for kind in ("noise", "speech", "music"):
    for i in range(8):
        record(f"musan/{kind}/a/b/{i}.wav")
record("rir/a/b/0.wav", 0.1)
with open("train.txt", "w") as f:
    f.writelines(f"id{i % 10} id{i % 10}/{i % 20}.wav\n" for i in range(100))
with open("eval.txt", "w") as f:
    f.writelines(f"{i % 2} id{i}/{i}.wav id{i}/{i + 10}.wav\n" for i in range(3))


class Bands(torch.nn.Module):
    """In place of `MelSpectrogram`: n_mels bands of a plain spectrum."""

    def __init__(self, n_fft, win_length, hop_length, n_mels, window_fn, **_):
        super().__init__()
        self.sizes, self.n_mels = (n_fft, hop_length, win_length), n_mels
        self.register_buffer("window", window_fn(win_length))

    def forward(self, sound):
        power = torch.stft(sound, *self.sizes, window=self.window, return_complex=True).abs() ** 2
        return torch.nn.functional.interpolate(power.transpose(1, 2), self.n_mels).transpose(1, 2)


audio = kit.module("torchaudio")
audio.transforms = kit.module("torchaudio.transforms", MelSpectrogram=Bands)
kit.run(cpu=True)
