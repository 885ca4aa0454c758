"""MMEngine's Runner with its logger hook."""

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from told import tell


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs, wanted, mode):
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), wanted)}


class Tell(Hook):
    priority = "VERY_LOW"

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if (runner.iter + 1) % 10 == 0:
            loss = runner.message_hub.get_scalar("train/loss").mean(10)
            tell(runner.iter + 1, loss=float(loss))


def main():
    torch.manual_seed(1)
    x = torch.randn(640, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    runner = Runner(
        model=Net(),
        work_dir="work",
        train_dataloader=torch.utils.data.DataLoader(data, 16),
        train_cfg={"by_epoch": True, "max_epochs": 3},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
        default_hooks={"logger": {"type": "LoggerHook", "interval": 10}},
        custom_hooks=[Tell()],
    )
    runner.train()


if __name__ == "__main__":
    main()
