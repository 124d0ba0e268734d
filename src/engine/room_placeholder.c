typedef int rg_engine_room;
