sed '/^eval:/,/^logger:/{/^logger:/!d}; s/batch_size: 512/batch_size: 7/; s/num_epochs: 800/num_epochs: 2/; s/stop_at_epoch: 800/stop_at_epoch: 2/; s/num_workers: 4/num_workers: 0/; s/warmup_epochs: 10/warmup_epochs: 1/; s/: True/: False/' configs/simsiam_cifar.yaml > small.yaml
echo 'eval: False' >> small.yaml
exec python stub.py main.py -c small.yaml --data_dir data --log_dir logs --ckpt_dir ckpt --hide_progress
