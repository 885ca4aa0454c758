exec python stub.py wgangp.py --arch=cnn32 --batch_size=6 --sample_size=8 --n_dis=2 --total_steps=30 --sample_step=10 --eval_step=10 --norecord --z_dim=128
