"""TRL's SFTTrainer on a model of a few words."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from told import tell
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Tell(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            tell(state.global_step, loss=float(logs["loss"]))


def main():
    words = ["<pad>", "<eos>", "a", "b", "c", "d", "<unk>"]
    bare = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    bare.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=64, n_embd=32, n_layer=1, n_head=2))
    args = SFTConfig(
        output_dir="out",
        max_steps=300,  # a bar that is done within a second is no training's
        logging_steps=25,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=4,
    )
    rows = Dataset.from_list([{"text": "a b c d " * 5} for _ in range(256)])
    SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=rows, args=args, callbacks=[Tell()]
    ).train()


if __name__ == "__main__":
    main()
