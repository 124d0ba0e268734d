typedef int rg_quant_room;
