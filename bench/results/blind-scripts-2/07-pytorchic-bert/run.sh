exec python stub.py classify.py --task=mrpc --train_cfg=small.json --model_cfg=model.json --data_file=train.tsv --vocab=vocab.txt --pretrain_file=None --save_dir=saved --max_len=32
