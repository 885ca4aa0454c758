exec python stub.py train_cifar10.py --net res18 --bs 6 --n_epochs 2 --nowandb --noamp
