cd pytorch && exec python ../stub.py main.py --model pointnet --num_points 64 --batch_size 14 --test_batch_size 10 --epochs 3 --emb_dims 64 --no_cuda true
