"""The words of run ids, such as ``brave-otter``: short, friendly, easy to say and to tell apart."""

from __future__ import annotations

ADJECTIVES = tuple(
    """
    able bold brave brisk bright calm clear clever cool crisp deft eager early even fair fast fine firm
    fleet fond free fresh gentle glad grand green happy hardy jolly keen kind light lively lucky mellow
    merry mild neat noble plain proud quick quiet ready rosy round sharp silent silver sleek smart
    smooth snug solid spry steady still stout sunny sure swift tall tidy true vast warm wide wise witty
    young zesty
    """.split()  # noqa: SIM905 - words are read here, not quotes
)
ANIMALS = tuple(
    """
    ant badger bat bear beaver bee bison boar bream carp cat cod crane crow deer dingo dove duck eagle
    eel egret elk emu falcon ferret finch fox frog gecko goat goose grouse gull hare hawk heron hornet
    ibex ibis jay kite koala lark lemur lion llama lynx marten mink mole moose moth mouse newt ocelot
    orca oriole osprey otter owl panda perch pike plover puffin quail rabbit raven robin salmon seal
    shrew skunk snail snipe sparrow squid stoat stork swan tapir tern thrush tiger toad trout tuna viper
    vole walrus wasp weasel whale wolf wombat wren yak zebra
    """.split()  # noqa: SIM905 - words are read here, not quotes
)
