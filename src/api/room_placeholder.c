typedef int rg_api_room;
