// For every piece of text in arguments[0] (an element): what it says, and the contrast of its colour against what lies behind it, by WCAG 2.
// Colours are composed as the page is: each ancestor's background under it, then that ancestor's opacity, at last the white canvas.
const root = arguments[0];

const over = (top, under) => {
    const alpha = top[3] + under[3] * (1 - top[3]);
    const mix = (i) => (alpha ? (top[i] * top[3] + under[i] * under[3] * (1 - top[3])) / alpha : 0);
    return [mix(0), mix(1), mix(2), alpha];
};
const read = (text) => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
};
const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (element) => {
    let ink = read(getComputedStyle(element).color);
    let paper = [0, 0, 0, 0];
    for (let node = element; node; node = node.parentElement) {
        const style = getComputedStyle(node);
        const background = read(style.backgroundColor);
        ink = over(ink, background);
        paper = over(paper, background);
        ink[3] *= style.opacity;
        paper[3] *= style.opacity;
    }
    const [a, b] = [ink, paper].map((colour) => luminance(over(colour, [255, 255, 255, 1]))).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
};

const found = [];
for (const element of [root, ...root.querySelectorAll('*')]) {
    const own = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.textContent.trim());
    const field = ['INPUT', 'SELECT'].includes(element.tagName) && element.type !== 'checkbox' ? [element.value] : [];
    const text = [...own, ...field].filter(Boolean).join(' ');
    if (text && element.tagName !== 'OPTION' && element.checkVisibility()) {
        const cut = element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX !== 'visible';
        found.push({ text: text.slice(0, 60), contrast: contrast(element), cut: cut && element.clientWidth > 0 });
    }
}
return found;
