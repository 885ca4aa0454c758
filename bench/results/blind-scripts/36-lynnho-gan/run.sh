exec python stub.py train.py --dataset fashion_mnist --batch_size 11 --epochs 2 --n_d 2 --adversarial_loss_mode gan --experiment_name noise
