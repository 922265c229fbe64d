// Requests to the plugin, and formats of numbers.

export async function ask(path, query) {
  const url = new URL(`../${path}`, import.meta.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const answer = await fetch(url);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || `${path}: ${answer.status}`);
  return found;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const left = Math.max(0, Math.round(seconds));
  for (let k = 0; k < 3; k++) {
    const [[word, size], [small, part]] = [units[k], units[k + 1]];
    if (left >= size) {
      const rest = Math.floor((left % size) / part);
      return `${Math.floor(left / size)} ${word}${rest ? ` ${rest} ${small}` : ""}`;
    }
  }
  return `${left} s`;
}

export function clockTime(seconds, kind, step) {
  if (kind === "unix") {
    const at = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return step >= 86400 ? day : step >= 60 ? `${day.slice(5)} ${time}` : `${time}:${two(at.getSeconds())}`;
  }
  const days = Math.floor(seconds / 86400), left = Math.round(seconds - 86400 * days);
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (step >= 86400) return `day ${days}`;
  const time = `${two(left / 3600)}:${two((left % 3600) / 60)}`;
  return step >= 60 ? `day ${days} ${time}` : `${time}:${two(left % 60)}`;
}
