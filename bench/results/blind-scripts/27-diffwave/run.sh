exec python stub.py src/diffwave/__main__.py model wavs --max_steps 16
