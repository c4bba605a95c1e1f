"""How shared devices are offered: an administrator's rules come in, shares and replicas go out."""
