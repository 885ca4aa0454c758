"""LightningCLI with a module and a data module; it runs out of memory on rank 1 (memory.py)."""

import time

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from memory import train_on
from torch.nn.functional import mse_loss


class Net(lightning.LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, at):
        train_on(self.global_step, len(batch[0]))
        time.sleep(0.1)
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Numbers(lightning.LightningDataModule):
    def __init__(self, batch_size: int = 32, size: int = 320):
        super().__init__()
        self.batch_size, self.size = batch_size, size

    def train_dataloader(self):
        x = torch.randn(self.size, 16, generator=torch.Generator().manual_seed(1))
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size, shuffle=True)


if __name__ == "__main__":
    LightningCLI(Net, Numbers, save_config_callback=None)
