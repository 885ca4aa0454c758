import os
import signal
import time

print("12 layers, 85.4M parameters, 50 steps", flush=True)
for step in range(50):
    time.sleep(0.1)
    print(f"[step {step + 1:>3}/50] loss: {4.0 - step * 0.03:.3f}  grad_norm: 1.2", flush=True)
    if step == 27:  # what a fused kernel with a bad index does
        os.kill(os.getpid(), signal.SIGSEGV)
