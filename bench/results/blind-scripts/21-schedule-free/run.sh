exec python stub.py examples/mnist/main.py --batch-size 28 --test-batch-size 60 --epochs 2 --log-interval 5 --save-model
