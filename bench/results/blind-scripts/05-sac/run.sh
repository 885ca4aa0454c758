exec python stub.py main.py --env-name Point-v0 --start_steps 80 --num_steps 500 --batch_size 40 --hidden_size 64 --updates_per_step 2 --automatic_entropy_tuning true
