// Conversations and settings live in this browser alone.
const read = (key, otherwise) => {
  try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
};
const write = (key, value) => {
  try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
};

export const settings = read("regolith.settings", {});
export const saveSettings = () => write("regolith.settings", settings);

export const talks = read("regolith.talks", []);
// When the browser's room is full the oldest conversations go.
export function saveTalks() {
  while (!write("regolith.talks", talks) && talks.length > 1) talks.pop();
}

export function newTalk() {
  const talk = { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, title: "New conversation", messages: [] };
  talks.unshift(talk);
  return talk;
}
