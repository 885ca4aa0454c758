"""`STOKER=…/stoker python attacks.py [number …]`: the thirty attacks, each in a folder of its own. Facts are printed as PASS, FAIL or NOTE."""

import attacks_age_room
import attacks_hands_jobs
import attacks_terminal_secrets
from common import main

if __name__ == "__main__":
    main(attacks_terminal_secrets.ATTACKS | attacks_age_room.ATTACKS | attacks_hands_jobs.ATTACKS)
