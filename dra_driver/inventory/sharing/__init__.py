"""How shared devices are offered: the rules that an administrator writes in, shares and replicas out."""
