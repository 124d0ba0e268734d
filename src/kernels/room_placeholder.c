typedef int rg_kernels_room;
