"""Fine-tuning with a validation that draws images: a silence of a dozen seconds, sixty times a step's time."""

import logging
import sys
import time

logging.basicConfig(
    format="%(asctime)s - %(levelname)s - %(name)s - %(message)s",
    datefmt="%m/%d/%Y %H:%M:%S",
    level=logging.INFO,
)
logger = logging.getLogger("__main__")
TOTAL = 60

logger.info("***** Running training *****")
logger.info("  Num examples = 240")
logger.info("  Num Epochs = 2")
logger.info("  Instantaneous batch size per device = 8")
logger.info("  Total optimization steps = %d", TOTAL)
for step in range(1, TOTAL + 1):
    time.sleep(0.18)
    bar = "█" * (step * 10 // TOTAL)
    sys.stderr.write(
        f"\rSteps: {step * 100 // TOTAL:3d}%|{bar:<10}| {step}/{TOTAL} [00:{step // 5:02d}<00:{(TOTAL - step) // 5:02d},  5.41it/s, "
        f"lr=0.0001, step_loss={0.2 / step**0.3:.4f}]"
    )
    sys.stderr.flush()
    if step == 30:
        sys.stderr.write("\n")
        logger.info(
            "Running validation... \n Generating 4 images with prompt: a photo of sks dog in a bucket."
        )
        time.sleep(12)
sys.stderr.write("\n")
logger.info("Model weights saved in lora-out/pytorch_lora_weights.safetensors")
