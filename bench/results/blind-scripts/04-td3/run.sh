exec python stub.py main.py --env Point-v0 --start_timesteps 100 --max_timesteps 600 --eval_freq 200 --batch_size 48 --save_model
