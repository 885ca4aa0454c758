exec python stub.py main.py --image_size 32 --batch_size 12 --epochs 2 --workers 0
