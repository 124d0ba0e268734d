typedef int rg_model_room;
