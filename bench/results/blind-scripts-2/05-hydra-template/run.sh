exec python stub.py trainer.py working_dir=$PWD device=cpu num_epoch=2 train.batch_size=12 test.batch_size=12 train.num_workers=1 test.num_workers=1 log.chkpt_interval=1
