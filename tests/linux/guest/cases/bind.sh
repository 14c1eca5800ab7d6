# The program finds the cards, takes one from the kernel's driver for VFIO, and gives it back.
step "the main job on simulated devices" bareverbs -n 10
