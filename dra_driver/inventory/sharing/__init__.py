"""How shared devices are offered: an administrator's rules, and the shares and replicas that follow from them."""
