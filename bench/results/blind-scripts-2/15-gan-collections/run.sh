exec python stub.py wgangp.py --arch=cnn32 --batch_size=6 --sample_size=8 --n_dis=2 --total_steps=8 --sample_step=3 --eval_step=3 --norecord --z_dim=128
