exec python stub.py src/train.py -its 12 -nep 3 -cTr 10 -nsTr 2 -nqTr 3 -cVa 5 -nsVa 2 -nqVa 4 --experiment_root output
