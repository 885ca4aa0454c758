"""Lightning with its own launcher of two processes; the bar is tqdm's or rich's."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from told import tell
from torch import nn
from torch.nn.functional import mse_loss


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, at):
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        if self.global_rank == 0:
            tell(self.global_step + 1, loss=float(loss))
        return loss

    def validation_step(self, batch, at):
        self.log("val_loss", mse_loss(self.net(batch[0]), batch[1]), prog_bar=True, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    torch.manual_seed(1)
    x = torch.randn(1024, 16)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    train = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    bar = RichProgressBar() if sys.argv[1] == "rich" else TQDMProgressBar()
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", devices=2, strategy="ddp", callbacks=[bar], logger=False
    )
    trainer.fit(Net(), train, torch.utils.data.DataLoader(data, batch_size=64))


if __name__ == "__main__":
    main()
