// The rule for the names of users, which also holds for the labels of tokens.

/** Control characters could garble a terminal or a log. Over 255 characters may be too long for an index. */
export const isPrintable = (text: string) => /^[^\p{C}\p{Zl}\p{Zp}]{1,255}$/u.test(text)
