typedef int rg_forge_room;
