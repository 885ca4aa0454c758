sed 's/"batch_size": 128/"batch_size": 36/; s/"num_workers": 2/"num_workers": 0/; s/"epochs": 100/"epochs": 4/; s/"tensorboard": true/"tensorboard": false/' config.json > small.json
exec python stub.py train.py -c small.json
