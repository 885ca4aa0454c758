exec python stub.py wgangp.py --arch=cnn32 --batch_size=14 --sample_size=8 --n_dis=5 --total_steps=6 --sample_step=3 --eval_step=3 --norecord --z_dim=128
