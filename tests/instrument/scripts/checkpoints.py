"""Saves and loads in every way that is measured; the test reads the records."""

import io
import os
import shutil
import warnings
from glob import glob  # before torch: the function itself is never replaced
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
os.path.exists("kept/last.pt")
os.path.isdir("elsewhere")
os.path.isdir("runs")
glob("runs/checkpoint-*")
Path("best.pt").is_file()
for number in range(40):
    os.path.isfile("images/%d.jpg" % number)
try:
    torch.load("snapshot.pt")
except FileNotFoundError:
    pass

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


os.makedirs("kept")
os.makedirs("runs/checkpoint-1/parts")
step()
torch.save(state(), "kept/by_path.pt")
step()
with open("kept/by_file.pt", "wb") as file:
    torch.serialization.save(state(), file)
step()
torch.save(obj=model.state_dict(), f=Path("kept/tmp"))
os.replace("kept/tmp", "kept/last.pt")
shutil.copy("kept/last.pt", "best.pt")
torch.save(state(), "runs/checkpoint-1/parts/model.pt")
os.rename("runs/checkpoint-1", "runs/checkpoint-3")
torch.save(state(), "snapshot.pt")
for _ in range(30):
    step()
    torch.save(state(), "often.pt")

torch.save(state(), io.BytesIO())

dcp.save({"model": model.state_dict()}, checkpoint_id="distributed")
dcp.save({"model": model.state_dict()}, storage_writer=dcp.FileSystemWriter("distributed2"))
dcp.load({"model": model.state_dict()}, checkpoint_id="distributed")
torch.distributed.init_process_group(
    "gloo", rank=0, world_size=1, init_method="file://" + os.path.abspath("store")
)
future = dcp.async_save({"model": model.state_dict()}, checkpoint_id="later")
step()
getattr(future, "upload_completion", future).result()
torch.distributed.destroy_process_group()

loaded = torch.load("kept/by_path.pt")
optimizer.load_state_dict(state_dict=loaded["optimizer"])

try:
    from safetensors.torch import load_file, load_model, save_file, save_model
except ImportError:
    print("no safetensors")
else:
    save_model(model, "model.safetensors")
    load_model(model, "model.safetensors")
    save_file({"weight": torch.zeros(3)}, "tensors.safetensors")
    load_file("tensors.safetensors")
