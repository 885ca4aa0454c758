exec python stub.py tools/train.py --cfg small.yaml
