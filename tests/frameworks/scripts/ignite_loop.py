"""Ignite: a tqdm bar an epoch, and lines of one's own that count the whole training."""

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers.tqdm_logger import ProgressBar
from ignite.metrics import RunningAverage
from told import tell

EPOCHS = 3


def main():
    torch.manual_seed(1)
    x = torch.randn(1024, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, 16)
    model = torch.nn.Linear(8, 1)
    trainer = create_supervised_trainer(
        model, torch.optim.SGD(model.parameters(), 1e-2), torch.nn.functional.mse_loss
    )
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    ProgressBar().attach(trainer, ["loss"])

    @trainer.on(Events.ITERATION_COMPLETED(every=20))
    def say(engine):
        state = engine.state
        print(
            f"Epoch[{state.epoch}] Iteration[{state.iteration}/{len(loader) * EPOCHS}] Loss: {state.output:.4f}"
        )
        tell(state.iteration, loss=state.output)

    trainer.run(loader, max_epochs=EPOCHS)


if __name__ == "__main__":
    main()
