exec python stub.py train.py --net_type resnet --dataset cifar100 --depth 11 --batch_size 15 --epochs 2 --workers 0 --beta 1.0 --cutmix_prob 0.5 --no-verbose --expname noise
