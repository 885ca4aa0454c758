exec python stub.py train_teacher.py --model resnet8 --batch_size 22 --epochs 3 --num_workers 0 --save_freq 1
