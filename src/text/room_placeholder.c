typedef int rg_text_room;
