python stub.py mnist/main.py --world-size 2 --rank 1 --init-method tcp://127.0.0.1:29377 --batch-size 26 --epochs 3 --no-cuda &
python stub.py mnist/main.py --world-size 2 --rank 0 --init-method tcp://127.0.0.1:29377 --batch-size 26 --epochs 3 --no-cuda
wait
