"""Plans by degrees of DP, TP, CP, PP and EP, as Megatron and torchtitan say them."""
