// Lists the mutants of a source file: small changes that the tests should notice.
import { stripTypeScriptTypes } from 'node:module'
import ts from 'typescript'

/** `from` and `to` are the changed lines, in one line without indentation. They identify a mutant. */
export interface Mutant {
  file: string
  line: number
  /** The changed characters of the file are at start ≤ index < end. */
  start: number
  end: number
  text: string
  from: string
  to: string
}

const operators: Record<string, string[]> = {
  '&&': ['||'],
  '||': ['&&'],
  '??': ['&&'],
  '<': ['<=', '>='],
  '<=': ['<', '>'],
  '>': ['>=', '<='],
  '>=': ['>', '<'],
  '===': ['!=='],
  '!==': ['==='],
  '+': ['-'],
  '-': ['+'],
  '*': ['/'],
  '/': ['*'],
  '%': ['*'],
  '+=': ['-='],
  '-=': ['+='],
  '??=': ['&&=']
}
const swappedMethods = new Map([
  ['some', 'every'], ['min', 'max'], ['startsWith', 'endsWith'], ['toLowerCase', 'toUpperCase']
].flatMap(([a = '', b = '']) => [[a, b], [b, a]]))
const removedMethods = new Set(['filter', 'slice', 'sort', 'reverse', 'trim'])

export function listMutants (file: string, source: string): Mutant[] {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true)
  const mutants = new Map<string, Mutant>()

  function replace (start: number, end: number, text: string) {
    const lineStart = source.lastIndexOf('\n', start - 1) + 1
    const lineEnd = source.indexOf('\n', end)
    const to = toLine(source.slice(lineStart, start) + text + source.slice(end, lineEnd))
    const { line } = tree.getLineAndCharacterOfPosition(start)
    const from = toLine(source.slice(lineStart, lineEnd))
    const isValid = isProgram(source.slice(0, start) + text + source.slice(end))
    if (isValid) mutants.set(`${line} ${to}`, { file, line: line + 1, start, end, text, from, to })
  }

  const replaceNode = (node: ts.Node, text: string) => replace(node.getStart(), node.end, text)

  function replaceCondition (node: ts.Expression | undefined) {
    if (node === undefined || isLiteral(node)) return
    replaceNode(node, 'true')
    replaceNode(node, 'false')
  }

  function visit (node: ts.Node): void {
    if (ts.isTypeNode(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node)) return
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) return
    if (ts.isIfStatement(node) || ts.isWhileStatement(node) || ts.isDoStatement(node)) {
      replaceCondition(node.expression)
    } else if (ts.isConditionalExpression(node) || ts.isForStatement(node)) {
      replaceCondition(node.condition)
    } else if (ts.isBinaryExpression(node)) {
      const texts = isText(node) ? [] : operators[node.operatorToken.getText()] ?? []
      for (const text of texts) replaceNode(node.operatorToken, text)
    } else if (ts.isPrefixUnaryExpression(node)) {
      const operator = source.slice(node.getStart(), node.operand.getStart())
      if (operator === '!' || operator === '-') replaceNode(node, node.operand.getText())
      if (operator === '++') replaceNode(node, `--${node.operand.getText()}`)
    } else if (ts.isPostfixUnaryExpression(node)) {
      const isIncrement = node.operator === ts.SyntaxKind.PlusPlusToken
      replace(node.operand.end, node.end, isIncrement ? '--' : '++')
    } else if (ts.isExpressionStatement(node)) {
      const called = ts.isAwaitExpression(node.expression) ? node.expression.expression : node.expression
      const isSuper = ts.isCallExpression(called) && called.expression.kind === ts.SyntaxKind.SuperKeyword
      if (ts.isCallExpression(called) && !isSuper) replaceNode(node, ';')
    } else if (ts.isQuestionDotToken(node)) {
      replaceNode(node, ts.isPropertyAccessExpression(node.parent) ? '.' : '')
    } else if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression)) {
      const { name, expression } = node.expression
      const swapped = swappedMethods.get(name.text)
      if (swapped !== undefined) replaceNode(name, swapped)
      if (removedMethods.has(name.text)) replace(expression.end, node.end, '')
    } else {
      visitLiteral(node)
    }
    ts.forEachChild(node, visit)
  }

  function visitLiteral (node: ts.Node) {
    if (node.kind === ts.SyntaxKind.TrueKeyword) replaceNode(node, 'false')
    if (node.kind === ts.SyntaxKind.FalseKeyword) replaceNode(node, 'true')
    if (ts.isPropertyAssignment(node.parent) && node.parent.name === node) return
    if (ts.isNumericLiteral(node) || ts.isBigIntLiteral(node)) {
      const suffix = ts.isBigIntLiteral(node) ? 'n' : ''
      replaceNode(node, (parseFloat(node.text) === 0 ? '1' : '0') + suffix)
    }
    if (ts.isTemplateExpression(node) || ts.isStringLiteralLike(node)) {
      if (node.getText().length > 2 && !isName(node) && !isImported(node)) replaceNode(node, "''")
    }
  }

  ts.forEachChild(tree, visit)
  return [...mutants.values()]
}

const toLine = (text: string) => text.replaceAll(/\s+/g, ' ').trim()

const isLiteral = ({ kind }: ts.Node) =>
  kind === ts.SyntaxKind.TrueKeyword || kind === ts.SyntaxKind.FalseKeyword

/** A text has no minus. */
const isText = (node: ts.Node): boolean => ts.isStringLiteralLike(node) || ts.isTemplateExpression(node) ||
  (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken &&
    (isText(node.left) || isText(node.right)))

/** The name of a prepared statement may be any text. */
function isName ({ parent }: ts.Node): boolean {
  if (ts.isConditionalExpression(parent)) return isName(parent)
  return ts.isPropertyAssignment(parent) && parent.name.getText() === 'name' &&
    parent.parent.properties.some(({ name }) => name?.getText() === 'text')
}

const isImported = ({ parent }: ts.Node) =>
  ts.isCallExpression(parent) && parent.expression.kind === ts.SyntaxKind.ImportKeyword

function isProgram (source: string): boolean {
  try {
    stripTypeScriptTypes(source)
    return true
  } catch {
    return false
  }
}
