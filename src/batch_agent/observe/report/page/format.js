"use strict";
/* Formatting of counts, times, shares and money. Null and invalid values are "unknown". */
const format = (() => {
  const UNKNOWN = "unknown";
  const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  const UNITS = [
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
  ];

  /** Larger numbers are invalid: no run has them, and they would break the charts. */
  const LARGEST = 1e15;
  const isNumber = (value) => typeof value === "number" && Math.abs(value) <= LARGEST;

  /** All digits: for tables and tooltips. */
  function exact(value) {
    return isNumber(value) ? whole.format(value) : UNKNOWN;
  }

  function amount(value) {
    if (!isNumber(value)) return UNKNOWN;
    for (const [size, unit] of UNITS) if (Math.abs(value) >= size) return `${digits(value / size)} ${unit}`;
    return whole.format(value);
  }

  /** For axis labels, where space is short. */
  function short(value) {
    if (!isNumber(value)) return "";
    const thousands = Math.abs(value) >= 1e4 && Math.abs(value) < 1e6;
    return thousands ? `${trimmed(value / 1e3)}k` : Math.abs(value) >= 1e6 ? amount(value) : trimmed(value);
  }

  function share(part, all) {
    if (!isNumber(part) || !isNumber(all) || all <= 0) return UNKNOWN;
    const percent = (100 * part) / all;
    if (percent > 0 && percent < 0.1) return "< 0.1 %";
    const isFine = (percent > 0 && percent < 10) || (percent > 99 && percent < 100);
    return `${percent.toFixed(isFine ? 1 : 0)} %`;
  }

  function seconds(value) {
    if (!isNumber(value)) return UNKNOWN;
    if (value < 0) return `-${seconds(-value)}`;
    if (value === 0) return "0 s";
    if (value < 0.001) return "< 1 ms";
    if (value < 0.9995) return `${value < 0.01 ? trimmed(value * 1e3) : (value * 1e3).toFixed(0)} ms`;
    if (value < 9.995) return `${value.toFixed(2)} s`;
    if (value < 59.95) return `${value.toFixed(1)} s`;
    const rounded = Math.round(value);
    if (rounded < 3600) return parts(rounded, 60, "min", 1, "s");
    if (rounded < 86400) return parts(Math.round(value / 60) * 60, 3600, "h", 60, "min");
    return parts(Math.round(value / 3600) * 3600, 86400, "d", 3600, "h");
  }

  function parts(value, large, largeName, small, smallName) {
    const rest = Math.floor((value % large) / small);
    return `${Math.floor(value / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
  }

  function dollars(value) {
    if (!isNumber(value)) return UNKNOWN;
    if (value === 0) return "$0";
    if (value < 0.000001) return "< $0.000001";
    const decimals = value >= 100 ? 0 : value >= 1 ? 2 : value >= 0.001 ? 4 : 6;
    const digitsAfter = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
    return `$${new Intl.NumberFormat("en", digitsAfter).format(value)}`;
  }

  /** The beginning of a JSON document with spaces in it, so that lines break between its values; other text as it is. */
  function spaced(text) {
    if (!/^[[{]/.test(text)) return text;
    return text.replace(/"(?:[^"\\]|\\.)*"?|[,:](?! )/g, (part) => (part.length === 1 && part !== '"' ? `${part} ` : part));
  }

  /** [value, unit] of a rate per second, minute or hour, whichever is readable. */
  function rate(perSecond) {
    if (!isNumber(perSecond)) return [UNKNOWN, ""];
    if (perSecond === 0 || perSecond >= 0.5) return [trimmed(perSecond), "/ s"];
    if (perSecond * 60 >= 0.5) return [trimmed(perSecond * 60), "/ min"];
    return [trimmed(perSecond * 3600), "/ h"];
  }

  function when(epoch) {
    if (!isNumber(epoch)) return UNKNOWN;
    const date = new Date(epoch * 1000);
    if (Number.isNaN(date.getTime())) return UNKNOWN;
    return new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" }).format(date);
  }

  function plural(count, one, many = `${one}s`) {
    return isNumber(count) ? `${exact(count)} ${count === 1 ? one : many}` : UNKNOWN;
  }

  /** A time on an axis whose marks are `step` apart. */
  function axis(value, step) {
    if (value === 0) return "0";
    if (value < 60 && step < 0.01) return `${trimmed(value * 1e3)} ms`;
    if (step < 60) return clock(value, step < 0.1 ? 2 : step < 1 ? 1 : 0);
    if (step < 3600)
      return value < 3600 ? `${Math.round(value / 60)} min` : parts(Math.round(value / 60) * 60, 3600, "h", 60, "min");
    if (step < 86400 && value < 86400) return `${Math.round(value / 3600)} h`;
    return parts(Math.round(value / 3600) * 3600, 86400, "d", 3600, "h");
  }

  /** A time under the pointer, as exact as pixels are where `width` seconds are visible. */
  function moment(value, width) {
    if (value >= 86400) return seconds(value);
    return clock(value, width < 1 ? 3 : width < 10 ? 2 : width < 60 ? 1 : 0);
  }

  /** 12.5 s, 1:02.5, 3:01:02 */
  function clock(value, decimals) {
    const rounded = Number(value.toFixed(decimals));
    if (rounded < 60) return `${rounded.toFixed(decimals)} s`;
    const last = (rounded % 60).toFixed(decimals).padStart(decimals ? decimals + 3 : 2, "0");
    const minutes = Math.floor(rounded / 60);
    if (minutes < 60) return `${minutes}:${last}`;
    return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${last}`;
  }

  function digits(value) {
    return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
  }

  function trimmed(value) {
    const text =
      Math.abs(value) >= 100 ? whole.format(value) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }

  /** Scores are often 0 or 1. */
  function score(value) {
    if (!isNumber(value)) return UNKNOWN;
    return Number.isInteger(value) ? whole.format(value) : value.toFixed(3);
  }

  return { UNKNOWN, isNumber, exact, amount, short, share, seconds, dollars, score, spaced, rate, when, plural, axis, moment };
})();
