// Lists the mutants of a source file: small changes that the tests should notice.
import { stripTypeScriptTypes } from 'node:module'
import ts from 'typescript'

/** `text` is the changed source. `from` and `to` are the changed lines, in one line without indentation. */
export interface Mutant { file: string, line: number, source: string, text: string, from: string, to: string }

/** Each entry is a text, then its replacements. */
const replacements = new Map([
  '&& ||', '|| &&', '?? &&', '??= &&=', '=== !==', '!== ===', '< <= >=', '<= < >', '> >= <=', '>= > <',
  '+ -', '- +', '* /', '/ *', '% *', '+= -=', '-= +=', 'true false', 'false true', 'some every', 'every some',
  'min max', 'max min', 'startsWith endsWith', 'endsWith startsWith', 'toLowerCase toUpperCase',
  'toUpperCase toLowerCase'
].map((entry) => entry.split(' ')).map(([text = '', ...by]) => [text, by]))
const removedMethods = new Set(['filter', 'slice', 'sort', 'reverse', 'trim'])

export function listMutants (file: string, source: string): Mutant[] {
  const tree = ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true)
  const mutants = new Map<string, Mutant>()

  function replace (start: number, end: number, by: string) {
    const line = tree.getLineAndCharacterOfPosition(start).line + 1
    const lineStart = source.lastIndexOf('\n', start - 1) + 1
    const lineEnd = source.indexOf('\n', end)
    const from = toLine(source.slice(lineStart, lineEnd))
    const to = toLine(source.slice(lineStart, start) + by + source.slice(end, lineEnd))
    const text = source.slice(0, start) + by + source.slice(end)
    if (from !== to && isProgram(text)) mutants.set(`${line} ${to}`, { file, line, source, text, from, to })
  }

  function replaceNode (node: ts.Node, ...texts: string[]) {
    for (const by of texts) replace(node.getStart(), node.end, by)
  }

  function visit (node: ts.Node): void {
    if (ts.isTypeNode(node) || ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node)) return
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) return
    replaceNode(node, ...replacements.get(node.getText()) ?? [])
    if (ts.isIfStatement(node) || ts.isWhileStatement(node) || ts.isDoStatement(node)) {
      replaceNode(node.expression, 'true', 'false')
    } else if (ts.isConditionalExpression(node) || ts.isForStatement(node)) {
      if (node.condition !== undefined) replaceNode(node.condition, 'true', 'false')
    } else if (ts.isPrefixUnaryExpression(node) || ts.isPostfixUnaryExpression(node)) {
      const [text, operand] = [node.getText(), node.operand.getText()]
      const operator = text.replace(operand, '')
      if (operator === '!' || operator === '-') replaceNode(node, operand)
      if (operator === '++') replaceNode(node, text.replace('++', '--'))
      if (operator === '--') replaceNode(node, text.replace('--', '++'))
    } else if (ts.isExpressionStatement(node)) {
      const called = ts.isAwaitExpression(node.expression) ? node.expression.expression : node.expression
      if (ts.isCallExpression(called)) replaceNode(node, ';')
    } else if (ts.isQuestionDotToken(node)) {
      replaceNode(node, ts.isPropertyAccessExpression(node.parent) ? '.' : '')
    } else if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression)) {
      const { name, expression } = node.expression
      if (removedMethods.has(name.text)) replace(expression.end, node.end, '')
    } else if (!ts.isPropertyAssignment(node.parent) || node.parent.name !== node) {
      replaceLiteral(node)
    }
    ts.forEachChild(node, visit)
  }

  function replaceLiteral (node: ts.Node) {
    if (ts.isNumericLiteral(node)) replaceNode(node, Number(node.text) === 0 ? '1' : '0')
    if (ts.isBigIntLiteral(node)) replaceNode(node, parseInt(node.text) === 0 ? '1n' : '0n')
    if (!ts.isTemplateExpression(node) && !ts.isStringLiteralLike(node)) return
    if (node.getText().length > 2 && !isName(node)) replaceNode(node, "''")
  }

  ts.forEachChild(tree, visit)
  return [...mutants.values()]
}

const toLine = (text: string) => text.replaceAll(/\s+/g, ' ').trim()

/** The name of a prepared statement may be any text. */
function isName ({ parent }: ts.Node): boolean {
  if (ts.isConditionalExpression(parent)) return isName(parent)
  return ts.isPropertyAssignment(parent) && parent.name.getText() === 'name' &&
    parent.parent.properties.some(({ name }) => name?.getText() === 'text')
}

function isProgram (source: string): boolean {
  try {
    stripTypeScriptTypes(source)
    return true
  } catch {
    return false
  }
}
